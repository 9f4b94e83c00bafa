-- Reads jobs, newest first. ARGV behind the usual: tenant ('': everybody's), kind ('': any), the place before which they are
-- ('+': all), how many, the
-- run whose children are meant ('': any). Returns now, where the next page begins ('': there is none), and id and text of each.
local tenant, kind, before, most, run = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7]
local ids, last = {}, ''
local index = run ~= '' and ':c:' .. run or kind == 'batch' and tenant ~= '' and ':b:' .. tenant
if index then
  local from = before == '+' and '+inf' or '(' .. string.match(before, '^%d+')
  local found = redis.call('ZREVRANGEBYSCORE', BASE .. index, from, '-inf', 'WITHSCORES', 'LIMIT', 0, most)
  for at = 1, #found, 2 do
    ids[#ids + 1] = found[at]
    last = string.format('%.0f', tonumber(found[at + 1])) .. '-' .. PARTITION
  end
else
  local stream = tenant == '' and ':all' or ':t:' .. tenant
  local found = redis.call('XREVRANGE', BASE .. stream, before == '+' and '+' or '(' .. before, '-', 'COUNT', most)
  for _, entry in ipairs(found) do
    ids[#ids + 1] = entry[2][2]
    last = entry[1]
  end
end
local rows = {}
for _, id in ipairs(ids) do
  local text = redis.call('HGET', BASE .. ':j:' .. id, 's')
  local head = text and tokens_of(string.match(text, '^[^\n]*'))
  if head and (kind == '' or head[KIND] == kind) and (tenant == '' or head[TENANT] == tenant) then
    rows[#rows + 1] = { id, text }
  end
end
return { said(), 0, #ids == most and last or '', rows }
