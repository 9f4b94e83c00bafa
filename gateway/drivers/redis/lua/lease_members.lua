-- Which replicas there are: each says about once a second that it is here, and who has not for a while is not counted.
--
-- KEYS[1]  the replicas, by when they were last heard
-- ARGV     now ('': the server's), the replica, after how many seconds of silence one is not counted
-- returns  how many there are

local now, id, silent_s = now_s(ARGV[1]), ARGV[2], tonumber(ARGV[3])
redis.call('ZADD', KEYS[1], string.format('%.6f', now), id)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.6f', now - silent_s))
redis.call('PEXPIRE', KEYS[1], 60000)
return redis.call('ZCARD', KEYS[1])
