-- It is free again, if it is held with this fence or nonce. ARGV: id, nonce, fence.
local record = look()
if is_held(record, ARGV[3], ARGV[2]) then
  redis.call('UNLINK', RECORD)
  redis.call('ZREM', RUNNING, ARGV[1])
end
return { entries() + redis.call('ZCARD', RUNNING), bytes_held() }
