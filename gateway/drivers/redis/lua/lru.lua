-- An LRU: which entries there are, which of them goes first, when each runs out, and how many bytes they take. What is not
-- listed here is not there, whatever its value's key still holds.
--
-- KEYS[1]  order: id -> the lower, the sooner it goes
-- KEYS[2]  ends:  id -> when it runs out
-- KEYS[3]  facts: id -> whose it is (32 bytes) and its bytes in digits; '' -> the bytes of all
-- KEYS[4]  gone:  ids that are listed no more, whose values have still to be dropped
local ORDER, ENDS, FACTS, GONE = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local SPARE_MS, GONE_MS = 3600000, 86400000
local AT_ONCE = 64 -- entries that go in one run: about a millisecond. Keep in sync with lru.py

-- A number without loss, for a reply.
local function exactly(number)
  return string.format('%.17g', number)
end

local function ms_of(seconds)
  return string.format('%.0f', math.max(1, math.ceil(seconds * 1000)))
end

local function entries()
  return redis.call('ZCARD', ORDER)
end

local function bytes_held()
  return tonumber(redis.call('HGET', FACTS, '') or '0')
end

-- A server that is short of memory may drop one of the three: then nothing is known of any entry.
local function check()
  local listed = math.max(0, redis.call('HLEN', FACTS) - 1)
  if redis.call('ZCARD', ORDER) ~= listed or redis.call('ZCARD', ENDS) ~= listed then
    redis.call('UNLINK', ORDER, ENDS, FACTS)
  end
end

-- It is listed no more; returns what is known of it, or nil.
local function take_out(id)
  local facts = redis.call('HGET', FACTS, id)
  if not facts then
    return nil
  end
  redis.call('ZREM', ORDER, id)
  redis.call('ZREM', ENDS, id)
  redis.call('HDEL', FACTS, id)
  redis.call('HINCRBY', FACTS, '', -tonumber(string.sub(facts, 33)))
  if entries() == 0 then
    redis.call('UNLINK', FACTS)
  end
  return facts
end

local function put_in(id, place, now, left, size, owner)
  redis.call('ZADD', ORDER, place, id)
  redis.call('ZADD', ENDS, now + left, id)
  redis.call('HSET', FACTS, id, owner .. size)
  redis.call('HINCRBY', FACTS, '', size)
  local ms = math.ceil(left * 1000) + SPARE_MS
  if redis.call('PTTL', FACTS) < ms then -- the three come and go together
    for which = 1, 3 do
      redis.call('PEXPIRE', KEYS[which], string.format('%.0f', ms + SPARE_MS))
    end
  end
end

-- As take_out; whoever is told of it drops the value.
local function let_go(id, ids)
  if take_out(id) then
    redis.call('SADD', GONE, id)
    redis.call('PEXPIRE', GONE, GONE_MS)
    ids[#ids + 1] = id
  end
end

-- Let entries go, the first in order first, until no more than so many bytes are held, or enough have gone at once.
-- Returns whether there is room, and how many that went would have been of use at `now`.
local function make_room(bytes, now, ids)
  local lost = 0
  while bytes_held() > bytes do
    local first = redis.call('ZRANGE', ORDER, 0, 0)[1]
    if not first or #ids >= AT_ONCE then
      return false, lost
    end
    if tonumber(redis.call('ZSCORE', ENDS, first)) > now then
      lost = lost + 1
    end
    let_go(first, ids)
  end
  return true, lost
end

-- A long value is in parts: these were put aside under a name of their own, and take the place of those that are there.
-- Returns false where they are not there any more.
local function keep_parts(value, place, staged, ms)
  if string.sub(value, 1, 4) ~= '\255\255\255\255' then
    redis.call('UNLINK', place)
    return true
  end
  if redis.call('EXISTS', staged) == 0 then
    return false
  end
  redis.call('UNLINK', place)
  redis.call('RENAME', staged, place)
  redis.call('PEXPIRE', place, ms)
  return true
end

-- Whether it is of this model and this tenant: digests of 16 bytes, or '' for any.
local function is_of(facts, model, tenant)
  return (model == '' or string.sub(facts, 1, 16) == model) and (tenant == '' or string.sub(facts, 17, 32) == tenant)
end
