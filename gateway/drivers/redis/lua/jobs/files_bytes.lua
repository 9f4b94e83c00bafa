-- Returns now, and the bytes of a tenant's files. ARGV behind the usual: tenant, '*' for everybody's.
return { said(), 0, redis.call('HGET', BASE .. ':bytes', ARGV[3]) or '0' }
