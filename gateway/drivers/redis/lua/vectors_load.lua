-- Some rows, the newest first, that have not run out. ARGV: now, how many, and of which order they have to be before ('': any).
-- Returns the order of the last one looked at ('': there are no more), then of each row the seconds left and its value.
local now, most, before = now_s(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
check_rows()
local found = redis.call('ZREVRANGEBYSCORE', ORDER, before == '' and '+inf' or '(' .. before, '-inf', 'LIMIT', 0, most)
if #found == 0 then
  return { '' }
end
local ends, values = redis.call('ZMSCORE', ENDS, unpack(found)), redis.call('HMGET', ROWS, unpack(found))
local rows = { #found == most and redis.call('ZSCORE', ORDER, found[#found]) or '' }
for which = 1, #found do
  local left = tonumber(ends[which]) - now
  if left > 0 then
    rows[#rows + 1] = exactly(left)
    rows[#rows + 1] = values[which]
  end
end
return rows
