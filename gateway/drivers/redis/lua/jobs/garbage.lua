-- Returns now, and names of blobs that nobody needs any more. ARGV behind the usual: how many, until when they were discarded.
return { said(), 0, redis.call('ZRANGEBYSCORE', BASE .. ':garbage', '-inf', ARGV[4], 'LIMIT', 0, ARGV[3]) }
