-- Reads letters of a group. ARGV behind the usual: group, when and id of the one behind which, how many.
local list, when, id, most = BASE .. ':g:' .. ARGV[3], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local at, found = redis.call('ZCOUNT', list, '-inf', '(' .. ARGV[4]), {}
while #found < most do
  local some = redis.call('ZRANGE', list, at, at + 99, 'WITHSCORES')
  for place_of = 1, #some, 2 do
    if #found < most and (tonumber(some[place_of + 1]) > when or some[place_of] > id) then
      found[#found + 1] = letter_of(some[place_of])
    end
  end
  if #some == 0 then
    break
  end
  at = at + 100
end
return { said(), 0, found }
