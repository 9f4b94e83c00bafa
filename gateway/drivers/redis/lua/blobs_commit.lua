-- Gives a blob its name, and notes when; may be repeated. KEYS: its manifest, its parts, and what is made with it for whoever
-- waits until it is safe, or nothing. ARGV: its nonce, how many parts, how many bytes, for how many milliseconds those may go on
-- who read what was there before. Returns 0 where parts have gone, because the writer took too long.
local count = tonumber(ARGV[2])
if count > 0 and redis.call('HLEN', KEYS[2]) ~= count + 1 then -- the nonce is a field, too
  return 0
end
local before = redis.call('GET', KEYS[1])
redis.call('PERSIST', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. math.floor(now_s('')))
if KEYS[3] then
  redis.call('SET', KEYS[3], '', 'PX', 30000)
end
local nonce = before and string.match(before, '^%S+')
if nonce and nonce ~= ARGV[1] then
  redis.call('PEXPIRE', KEYS[1] .. ':' .. nonce, ARGV[4])
end
return 1
