-- Reads places in a list of files. ARGV behind the usual: tenant, the id behind which ('': from the beginning), 1 for the newest
-- first, how many. Returns now, the id of the last place ('': it is the end), and id and file of those that are there.
local list, after, most = BASE .. ':f:' .. ARGV[3], ARGV[4], ARGV[6]
local from = ''
if after ~= '' then
  from = redis.call('ZSCORE', list, after)
  if not from then
    return { said(), 0, '', {} }
  end
  from = '(' .. string.format('%.0f', tonumber(from))
end
local ids
if ARGV[5] == '1' then
  ids = redis.call('ZREVRANGEBYSCORE', list, from == '' and '+inf' or from, '-inf', 'LIMIT', 0, most)
else
  ids = redis.call('ZRANGEBYSCORE', list, from == '' and '-inf' or from, '+inf', 'LIMIT', 0, most)
end
local rows = {}
for _, id in ipairs(ids) do
  if not is_gone(id) then
    local _, text = file_of(id)
    rows[#rows + 1] = { id, text }
  end
end
return { said(), 0, #ids == tonumber(most) and ids[#ids] or '', rows }
