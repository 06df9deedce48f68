-- wrk sends the bodies of a file, one line each, in turns: `wrk -s replay.lua URL -- FILE [header value]...`.
-- `@n@` in a body becomes the number of the request, so that no two bodies are equal.
-- The last line of wrk's output is JSON: microseconds, counts.
local lines, requests, headers = {}, {}, { ["Content-Type"] = "application/json" }
local sent = 0

function init(arguments)
  for index = 2, #arguments, 2 do
    headers[arguments[index]] = arguments[index + 1]
  end
  for line in io.lines(arguments[1]) do
    lines[#lines + 1] = line
    requests[#requests + 1] = not line:find("@n@", 1, true) and wrk.format("POST", nil, headers, line)
  end
end

function request()
  sent = sent + 1
  local at = sent % #lines + 1
  return requests[at] or wrk.format("POST", nil, headers, (lines[at]:gsub("@n@", sent)))
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"answered": %d, "duration_us": %d, "p50_us": %d, "p95_us": %d, "p99_us": %d, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(95), latency:percentile(99),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
