-- Forgets blobs that have been removed. ARGV behind the usual: their names. Returns now.
for at = 3, #ARGV do
  redis.call('ZREM', BASE .. ':garbage', ARGV[at])
  redis.call('SREM', BASE .. ':blocked', ARGV[at])
end
return { said(), 0 }
