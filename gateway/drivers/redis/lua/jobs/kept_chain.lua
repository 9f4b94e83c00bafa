-- Reads a response and those that it goes on from. ARGV behind the usual: tenant, id, how many, most bytes.
-- Returns now, 0, the id that is to be read next ('': it is the end), and of each: id, when it was made, until when it is kept,
-- the one before, body, input.
local tenant, id, most, bytes = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local found = {}
while #found < most and bytes >= 0 do
  local made, over, before, size, body, input = unpack(redis.call('HMGET', kept_at(tenant, id), 'c', 'k', 'p', 'z', 'b', 'i'))
  if not made or tonumber(over) <= now then
    id = ''
    break
  end
  found[#found + 1] = { id, made, over, before, body, input }
  id, bytes = before, bytes - size
end
return { said(), 0, id, found }
