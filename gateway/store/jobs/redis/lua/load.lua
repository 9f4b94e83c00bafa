-- Reads jobs. ARGV behind the usual: ids. Returns now, and head, rest and pieces of each.
local found = {}
for at = 3, #ARGV do
  found[#found + 1] = redis.call('HMGET', BASE .. ':j:' .. ARGV[at], 'h', 'b', 'p')
end
return { said(), 0, found }
