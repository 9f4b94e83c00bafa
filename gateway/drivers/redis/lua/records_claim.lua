-- Take a record that is free. A fence is a time in microseconds or, within one, a number more, so that a server that has lost
-- all it had gives higher ones as well; none is as low as those that a replica gives itself.
-- ARGV: now, id, asked, nonce, lease, how much longer its holder may come, for how long fences last.
-- Returns the state, and of `claimed` the fence, of `running` the seconds left, of `done` these and the value.
local now, id, asked, nonce, lease = now_s(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local record = look()
if record.state == 'running' and record.nonce == nonce then
  run(id, asked, nonce, record.fence, now, lease, tonumber(ARGV[6]))
  return { 'claimed', record.fence }
end
if not is_free(record, now) then
  if record.asked ~= asked then
    return { 'mismatch' }
  end
  local left = exactly(record.ends - now)
  if record.state == 'running' then
    return { 'running', left }
  end
  return { 'done', left, redis.call('HGET', RECORD, 'value') }
end
if record.state == 'done' then
  check()
  redis.call('UNLINK', RECORD, KEYS[8])
end
local last = tonumber(redis.call('HGET', KEYS[7], 'last') or '0')
local fence = string.format('%.0f', math.max(last + 1, math.floor(now * 1000000), 2 ^ 40))
redis.call('HSET', KEYS[7], 'last', fence)
if last == 0 then
  redis.call('HSET', KEYS[7], 'first', fence)
end
redis.call('EXPIRE', KEYS[7], ARGV[7])
run(id, asked, nonce, fence, now, lease, tonumber(ARGV[6]))
return { 'claimed', fence }
