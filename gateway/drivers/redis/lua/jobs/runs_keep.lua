-- Keeps a step; of two the first stays. ARGV behind the usual: id, step, 1 to replace the first, until when, bytes, the rest, the
-- record of a new run, the tenant's room, body. Returns now, whether it was kept, the rest and body of the one that stays, and
-- how many runs and steps had to go.
local id, step = ARGV[3], ARGV[4]
local old = redis.call('HGET', run_at(id), 's:' .. step)
if old then
  local till, rest = string.match(old, '^%S+ %S+ (%S+)\n(.*)$')
  if ARGV[5] ~= '1' and tonumber(till) > now then
    return { said(), 0, 0, rest, redis.call('HGET', BASE .. ':rx:' .. id, step), 0 }
  end
  drop_step(id, step)
end
touch(id, ARGV[9])
redis.call('HSET', run_at(id), 's:' .. step, next_place() .. ' ' .. ARGV[7] .. ' ' .. ARGV[6] .. '\n' .. ARGV[8])
redis.call('HSET', BASE .. ':rx:' .. id, step, ARGV[11])
redis.call('HINCRBY', run_at(id), 'n', 1)
weigh(id, tonumber(ARGV[7]))
return { said(), 0, 1, '', '', make_room(id, step, ARGV[10]) }
