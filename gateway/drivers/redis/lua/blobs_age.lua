-- Tells whether a blob got its name so long ago. KEYS: its manifest. ARGV: seconds. Returns 1 or 0; 0 also for one that is gone.
local at = string.match(redis.call('GET', KEYS[1]) or '', ' (%d+)$')
return (at and now_s('') - tonumber(at) >= tonumber(ARGV[1])) and 1 or 0
