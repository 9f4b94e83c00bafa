-- Writes letters, if they are as they were seen, and takes a job. ARGV behind the usual: number of letters, these; new jobs.
-- Returns now, how many became ready, and whether it was done.
local number = tonumber(ARGV[3])
if not are_letters_as_seen(4, number) then
  return { said(), 0, 0 }
end
write_letters(4, number)
for at = 4 + LETTER * number, #ARGV, WIDTH do
  take(new_at(at))
end
return { said(), readied, 1 }
