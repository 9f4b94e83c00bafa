-- Reads a step. ARGV behind the usual: id, step. Returns now, whether it is there, the rest, and its body.
local found = redis.call('HGET', run_at(ARGV[3]), 's:' .. ARGV[4])
local till, rest = string.match(found or '', '^%S+ %S+ (%S+)\n(.*)$')
if not till or tonumber(till) <= now then
  return { said(), 0, 0, '', '' }
end
return { said(), 0, 1, rest, redis.call('HGET', BASE .. ':rx:' .. ARGV[3], ARGV[4]) }
