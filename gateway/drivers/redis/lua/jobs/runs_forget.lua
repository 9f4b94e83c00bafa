-- Forgets one run, or those that were touched before a time. ARGV behind the usual: id ('': those), that time, how many.
-- Returns now, and how many were there.
local gone = 0
local ids = { ARGV[3] }
if ARGV[3] == '' then
  ids = redis.call('ZRANGEBYSCORE', BASE .. ':ro', '-inf', '(' .. ARGV[4], 'LIMIT', 0, ARGV[5])
end
for _, id in ipairs(ids) do
  if drop_run(id) then
    gone = gone + 1
  end
end
return { said(), 0, gone }
