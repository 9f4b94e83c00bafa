-- What still lasts. KEYS: as of news_tell. ARGV: now. Returns the server's time, then the messages.
local now = now_s(ARGV[1])
local reply = {string.format('%.6f', now)}
local lasting = redis.call('ZRANGEBYSCORE', KEYS[2], string.format('(%.6f', now), '+inf')
for _, about in ipairs(lasting) do
  reply[#reply + 1] = redis.call('HGET', KEYS[1], about)
end
return reply
