-- Removes letters. ARGV behind the usual: ids. Returns now, and how many there were.
local gone = 0
for at = 3, #ARGV do
  gone = gone + drop_letter(ARGV[at])
end
return { said(), 0, gone }
