-- Kept responses; in front of the scripts about them. TENANT is a token without ':'.
--   BASE:kept:TENANT:ID   hash: c, k (when it was made, until when it is kept), p (the one before), z (bytes), b (its body),
--                         i (its input)
--   BASE:puts:TENANT      zset of ids in the order in which they were put; BASE:put counts
--   BASE:kept_bytes       hash: bytes by tenant
--   BASE:kept_over        zset of TENANT:ID by when their time is over
--   BASE:unkept:TENANT:ID until when one that was removed is not kept, and 1 if it was there
local AT_ONCE = 100

local function kept_at(tenant, id)
  return BASE .. ':kept:' .. tenant .. ':' .. id
end

local function unkept_at(tenant, id)
  return BASE .. ':unkept:' .. tenant .. ':' .. id
end

local function unkeep(tenant, id)
  local at = kept_at(tenant, id)
  local size = redis.call('HGET', at, 'z')
  if size then
    redis.call('UNLINK', at)
    redis.call('ZREM', BASE .. ':puts:' .. tenant, id)
    redis.call('ZREM', BASE .. ':kept_over', tenant .. ':' .. id)
    redis.call('HINCRBY', BASE .. ':kept_bytes', tenant, '-' .. size)
    if redis.call('EXISTS', BASE .. ':puts:' .. tenant) == 0 then
      redis.call('HDEL', BASE .. ':kept_bytes', tenant)
    end
  end
end

-- Forgets those of a tenant that were put first, some of them; returns how many, and 1 if there are still too many bytes.
local function make_room(tenant, most)
  local early = 0
  local function is_too_much()
    return tonumber(redis.call('HGET', BASE .. ':kept_bytes', tenant) or '0') > most
  end
  while early < AT_ONCE and is_too_much() do
    unkeep(tenant, redis.call('ZRANGE', BASE .. ':puts:' .. tenant, 0, 0)[1])
    early = early + 1
  end
  return early, is_too_much() and 1 or 0
end
