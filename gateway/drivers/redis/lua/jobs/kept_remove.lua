-- Forgets a response, which is not kept again for a while. ARGV behind the usual: tenant, id, seconds, 1 if it may be put yet,
-- 1 if this may have been done before. Returns now, 0, and 1 if there was one.
local tenant, id, unkept = ARGV[3], ARGV[4], unkept_at(ARGV[3], ARGV[4])
local over = redis.call('HGET', kept_at(tenant, id), 'k')
local was_there = over and tonumber(over) > now
if not was_there and ARGV[7] == '1' then
  was_there = string.match(redis.call('GET', unkept) or '', ' 1$') ~= nil
end
if was_there or ARGV[6] == '1' then
  local until_s = exact(now + tonumber(ARGV[5])) .. (was_there and ' 1' or ' 0')
  redis.call('SET', unkept, until_s, 'PX', string.format('%.0f', tonumber(ARGV[5]) * 1000))
end
unkeep(tenant, id)
return { said(), 0, was_there and 1 or 0 }
