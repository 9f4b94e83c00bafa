-- Some of what has run out or is too much goes. ARGV: now, most rows. Returns entries and bytes.
check_rows()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', ENDS, '-inf', now_s(ARGV[1]), 'LIMIT', 0, AT_ONCE)) do
  take_out_row(id)
end
keep_newest(tonumber(ARGV[2]))
return { entries(), bytes_held() }
