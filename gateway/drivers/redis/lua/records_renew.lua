-- The lease runs from now on. What the server has lost is its holder's still, who shows its nonce.
-- ARGV: now, id, asked ('': it is not known to hold it), nonce, fence, lease, how much longer its holder may come.
local now, id, asked, nonce, fence, lease = now_s(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local record = look()
if is_held(record, fence, nonce) then
  run(id, record.asked, record.nonce, record.fence, now, lease, tonumber(ARGV[7]))
  return 1
end
if record.state or asked == '' or not has_lost(fence) then
  return 0
end
run(id, asked, nonce, fence, now, lease, tonumber(ARGV[7]))
return 1
