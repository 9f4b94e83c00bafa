-- Keeps a response, unless it was removed. ARGV behind the usual: tenant, most bytes; then, but where only room is to be made: id,
-- when it was made, until when it is kept, the one before, bytes, body, input.
-- Returns now, 0, how many went early, and 1 if room is to be made for it still.
local tenant, most, id = ARGV[3], tonumber(ARGV[4]), ARGV[5]
if id then
  local removed = redis.call('GET', unkept_at(tenant, id))
  if removed and tonumber(string.match(removed, '^%S+')) > now then
    return { said(), 0, 0, 0 }
  end
  unkeep(tenant, id)
  if tonumber(ARGV[9]) > most then
    return { said(), 0, 1, 0 }
  end
  redis.call('HSET', kept_at(tenant, id), 'c', ARGV[6], 'k', ARGV[7], 'p', ARGV[8], 'z', ARGV[9], 'b', ARGV[10], 'i', ARGV[11])
  redis.call('ZADD', BASE .. ':puts:' .. tenant, redis.call('INCR', BASE .. ':put'), id)
  redis.call('ZADD', BASE .. ':kept_over', ARGV[7], tenant .. ':' .. id)
  redis.call('HINCRBY', BASE .. ':kept_bytes', tenant, ARGV[9])
end
local early, is_more = make_room(tenant, most)
return { said(), 0, early, is_more }
