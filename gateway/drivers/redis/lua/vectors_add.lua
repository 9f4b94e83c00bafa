-- Keep a row instead of one with its id; the oldest go where there are more than so many.
-- KEYS[5] the rows' values by id. ARGV: now, id, seconds left, size, owner, most, value. Returns entries and bytes.
local now, id, most = now_s(ARGV[1]), ARGV[2], tonumber(ARGV[6])
check_rows()
take_out_row(id)
local newest = redis.call('ZREVRANGE', ORDER, 0, 0, 'WITHSCORES')[2]
redis.call('HSET', KEYS[5], id, ARGV[7])
put_in(id, tonumber(newest or '0') + 1, now, tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5])
live_as_long()
keep_newest(most)
return { entries(), bytes_held() }
