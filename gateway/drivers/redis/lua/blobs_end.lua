-- Ends what was begun: a writer that has not given its blob a name loses its parts; without a nonce the blob is removed.
-- KEYS: the manifest. ARGV: the nonce, or ''. Returns the bytes of the writer's blob where that is what is kept, else -1.
local kept = redis.call('GET', KEYS[1])
local nonce, bytes
if kept then
  nonce, bytes = string.match(kept, '^(%S+) %d+ (%d+)')
end
if ARGV[1] == '' then
  if kept then
    redis.call('DEL', KEYS[1])
    redis.call('UNLINK', KEYS[1] .. ':' .. nonce)
  end
  return -1
end
if nonce == ARGV[1] then
  return tonumber(bytes)
end
redis.call('UNLINK', KEYS[1] .. ':' .. ARGV[1])
return -1
