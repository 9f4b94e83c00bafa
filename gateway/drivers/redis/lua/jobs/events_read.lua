-- Reads the log of a response, or drops it. ARGV behind the usual: id, tenant, the event behind which, most bytes, the replica
-- that waits for more ('': nobody does, '-': the log is dropped).
-- Returns now, 0, the state of the job ('': there is none, or it is another tenant's), what is known of the log ('': there is
-- none), and for each part its place, first event and frames.
local READER_MS = 5000
local id, most, reader = ARGV[3], tonumber(ARGV[6]), ARGV[7]
local at, parts, mark = BASE .. ':j:' .. id, BASE .. ':ev:' .. id, BASE .. ':er:' .. id
local text, log = unpack(redis.call('HMGET', at, 's', 'e'))
local head = text and tokens_of(string.match(text, '^[^\n]*'))
if not head or (reader ~= '-' and head[TENANT] ~= ARGV[4]) then
  return { said(), 0, '', '', {} }
end
if reader == '-' then
  redis.call('HDEL', at, 'e')
  redis.call('UNLINK', parts)
  return { said(), 0, head[STATE], '', {} }
end
if reader ~= '' then
  local other = redis.call('GET', mark)
  redis.call('SET', mark, (other and other ~= reader) and '*' or reader, 'PX', READER_MS)
end
local found, size = {}, 0
local from = string.format('%.0f-0', tonumber(ARGV[5]) + 2)
while log and size <= most do
  local some = redis.call('XRANGE', parts, from, '+', 'COUNT', 32)
  for _, entry in ipairs(some) do
    local frames = entry[2][4]
    size = size + #frames
    if size > most and #found > 0 then
      break
    end
    found[#found + 1] = { entry[1], entry[2][2], frames }
  end
  if #some < 32 then
    break
  end
  from = '(' .. some[32][1]
end
return { said(), 0, head[STATE], log or '', found }
