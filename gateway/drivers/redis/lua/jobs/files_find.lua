-- Reads a file, or takes it away. ARGV behind the usual: id, tenant, 1 to take it away, 2 if that may have been done before.
-- Returns now, and the file ('': none).
local file, text = file_of(ARGV[3])
if not file or file[1] ~= ARGV[4] or (is_gone(ARGV[3]) and ARGV[5] ~= '2') then
  return { said(), 0, '' }
end
if ARGV[5] ~= '0' and not is_gone(ARGV[3]) then
  remove(ARGV[3], file)
end
return { said(), 0, text }
