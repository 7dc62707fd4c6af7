#!lua flags=allow-oom
-- Everything that is under way: it can always be booked, also when Redis is full.
--- @include number
--- @include window
--- @include line
--- @include receipt
--- @include context
--- @include account
--- @include ending
--- @include reply
--- @include evidence
--- @include batch
--- @include start
--- @script start
--- @script release
--- @script settle
--- @script unknown
--- @script sweep
--- @script freeze
return run_batch()
