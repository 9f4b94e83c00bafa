-- Reads the largest groups of letters, or the next by id: there may be as many groups as letters. ARGV behind the usual: how
-- many of the newest letters of each, how many groups, the id of the one behind which (none: the largest).
-- Returns now, and for each: its id, what is common to them, how many, their bytes, when the oldest and the newest came, letters.
local rows, samples = {}, tonumber(ARGV[3])
local found
if ARGV[5] then
  found = redis.call('ZRANGEBYLEX', BASE .. ':group_ids', '(' .. ARGV[5], '+', 'LIMIT', 0, ARGV[4])
else
  found = redis.call('ZREVRANGE', BASE .. ':sizes', 0, ARGV[4] - 1)
end
for _, group in ipairs(found) do
  local list, newest = BASE .. ':g:' .. group, {}
  if samples > 0 then
    for _, id in ipairs(redis.call('ZREVRANGE', list, 0, samples - 1)) do
      newest[#newest + 1] = letter_of(id)
    end
  end
  rows[#rows + 1] = {
    group, redis.call('HGET', BASE .. ':groups', group), redis.call('ZCARD', list),
    redis.call('HGET', BASE .. ':dead_bytes', group) or '0',
    redis.call('ZRANGE', list, 0, 0, 'WITHSCORES')[2], redis.call('ZRANGE', list, -1, -1, 'WITHSCORES')[2], newest,
  }
end
return { said(), 0, rows }
