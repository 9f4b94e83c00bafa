-- Put a part of a long value aside. KEYS[1] where. ARGV: for how many milliseconds, of which value, which part, the part.
redis.call('HSET', KEYS[1], 'nonce', ARGV[2], ARGV[3], ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
