#!lua
-- Admissions: a full Redis refuses them as a whole, before anything is read.
--- @include number
--- @include window
--- @include line
--- @include budget
--- @include receipt
--- @include context
--- @include account
--- @include ending
--- @include reply
--- @include batch
--- @include start
--- @script reserve
return run_batch()
