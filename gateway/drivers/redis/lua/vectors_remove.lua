-- Forget rows by id. ARGV: ids. Returns entries and bytes.
check_rows()
for _, id in ipairs(ARGV) do
  take_out_row(id)
end
return { entries(), bytes_held() }
