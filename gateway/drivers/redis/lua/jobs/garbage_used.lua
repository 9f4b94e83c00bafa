-- Returns now, and those blobs that somebody needs, or that are garbage as yet. ARGV behind the usual: names.
local used = {}
for at = 3, #ARGV do
  if is_used(ARGV[at]) or redis.call('ZSCORE', BASE .. ':garbage', ARGV[at]) then
    used[#used + 1] = ARGV[at]
  end
end
return { said(), 0, used }
