-- Reads a file, or takes it away. ARGV behind the usual: id, tenant, 1 to take it away. Returns now, and the file ('': none).
local file, text = file_of(ARGV[3])
if not file or file[1] ~= ARGV[4] or is_gone(ARGV[3]) then
  return { said(), 0, '' }
end
if ARGV[5] == '1' then
  remove(ARGV[3], file)
end
return { said(), 0, text }
