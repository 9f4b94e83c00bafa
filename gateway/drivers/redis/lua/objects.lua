-- Whose objects are, in one of several parts.
--
-- KEYS[1]  owners: object -> tenant
-- KEYS[2]  used:   object -> when it was last asked for; the lowest go first
local OWNERS, USED = KEYS[1], KEYS[2]
local KEPT_MS = '34560000000' -- 400 days after the last one was used

local function touch(object, now)
  redis.call('ZADD', USED, now, object)
end

local function keep()
  redis.call('PEXPIRE', OWNERS, KEPT_MS)
  redis.call('PEXPIRE', USED, KEPT_MS)
end
