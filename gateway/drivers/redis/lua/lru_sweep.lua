-- Some of what has run out or is too much goes.
-- KEYS[5] those that run, where there are such. ARGV: now, bound, how long after its lease one still runs.
-- Returns entries, bytes, how many were still of use, whose values are to be dropped, and some others to look after.
local now, ids = now_s(ARGV[1]), {}
check()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', ENDS, '-inf', now, 'LIMIT', 0, AT_ONCE)) do
  let_go(id, ids)
end
local _, lost = make_room(tonumber(ARGV[2]), now, ids)
for _, id in ipairs(redis.call('SRANDMEMBER', GONE, 50)) do -- of one who did not come to it
  ids[#ids + 1] = id
end
local running = 0
if KEYS[5] then
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now - tonumber(ARGV[3]))
  running = redis.call('ZCARD', KEYS[5])
end
return { entries() + running, bytes_held(), lost, ids, redis.call('ZRANDMEMBER', ORDER, 25) }
