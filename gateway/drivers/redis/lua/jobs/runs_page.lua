-- Reads places in a list of runs, the newest first. ARGV behind the usual: tenant ('': everybody's), the place behind which, how
-- many. Returns now, the last place ('': it is the end), and id, place, record, when it came, was touched, bytes and steps of each.
local list = BASE .. ':rl' .. (ARGV[3] == '' and '' or ':' .. ARGV[3])
local ids = redis.call('ZREVRANGEBYSCORE', list, ARGV[4], '-inf', 'LIMIT', 0, ARGV[5])
local rows, last = {}, ''
for _, id in ipairs(ids) do
  local row = redis.call('HMGET', run_at(id), 'p', 'r', 'c', 't', 'b', 'n')
  if row[1] then
    rows[#rows + 1] = { id, unpack(row) }
    last = row[1]
  end
end
return { said(), 0, #ids == tonumber(ARGV[5]) and last or '', rows }
