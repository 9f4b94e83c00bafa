-- Keeps a file. ARGV behind the usual: id, tenant, blob, bytes, when it expires ('': never), the rest as JSON.
local id, tenant, blob, bytes = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local old = file_of(id)
local gone = old and is_gone(id)
if gone and (old[5] == '' or tonumber(gone) < tonumber(old[5])) then -- removed, and not for its age: it stays so
  discard(blob)
  return { said(), 0 }
end
local place_of
if old then
  place_of = old[4]
  redis.call('ZREM', BASE .. ':f:' .. old[1], id)
  if not is_gone(id) then
    weigh(old[1], 0 - old[3])
    unuse(':blobs', old[2])
    if old[2] ~= blob then
      discard(old[2])
    end
  end
else
  place_of = string.format('%.0f', math.max(tonumber(redis.call('GET', BASE .. ':seq') or '0') + 1, real_us))
  redis.call('SET', BASE .. ':seq', place_of)
end
redis.call('ZREM', BASE .. ':gone', id)
redis.call('ZREM', BASE .. ':expiring', id)
redis.call('HSET', BASE .. ':files', id, cjson.encode({ tenant, blob, bytes, place_of, ARGV[7], ARGV[8] }))
redis.call('ZADD', BASE .. ':f:' .. tenant, place_of, id)
if ARGV[7] ~= '' then
  redis.call('ZADD', BASE .. ':expiring', ARGV[7], id)
end
weigh(tenant, bytes)
use(':blobs', blob)
return { said(), 0 }
