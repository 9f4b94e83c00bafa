-- Reads jobs. ARGV behind the usual: ids. Returns now, and the text of each ('': it is not there).
local found = {}
for at = 3, #ARGV do
  found[#found + 1] = redis.call('HGET', BASE .. ':j:' .. ARGV[at], 's') or ''
end
return { said(), 0, found }
