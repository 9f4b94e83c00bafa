-- Files of the Files API; in front of the scripts about them.
--   BASE:files hash: file by id as JSON of a row, whose first entries are tenant, blob, bytes, place
--   BASE:f:TENANT zset of ids by place, removed ones among them; BASE:gone zset of removed ones by when;
--   BASE:expiring zset of ids by when; BASE:bytes hash: bytes by tenant, '*' in all
local function file_of(id)
  local text = redis.call('HGET', BASE .. ':files', id)
  return text and cjson.decode(text), text
end

local function is_gone(id)
  return redis.call('ZSCORE', BASE .. ':gone', id)
end

local function weigh(tenant, bytes)
  redis.call('HINCRBY', BASE .. ':bytes', '*', string.format('%.0f', bytes))
  redis.call('HINCRBY', BASE .. ':bytes', tenant, string.format('%.0f', bytes))
end

-- Takes a file away from its tenant; its place in lists stays.
local function remove(id, file)
  redis.call('ZADD', BASE .. ':gone', exact(now), id)
  redis.call('ZREM', BASE .. ':expiring', id)
  weigh(file[1], 0 - file[3])
  unuse(':blobs', file[2])
  discard(file[2])
end

local function forget_file(id)
  local file = file_of(id)
  redis.call('ZREM', BASE .. ':gone', id)
  if file then
    redis.call('ZREM', BASE .. ':f:' .. file[1], id)
    redis.call('HDEL', BASE .. ':files', id)
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', BASE .. ':expiring', '-inf', exact(now), 'LIMIT', 0, 200)) do
  local file = file_of(id)
  if file then
    remove(id, file)
  end
  redis.call('ZREM', BASE .. ':expiring', id)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', BASE .. ':gone', '-inf', exact(now - 3600), 'LIMIT', 0, 100)) do
  forget_file(id)
end
