//go:build bundle && linux

package bundle

import _ "embed"

//go:embed bundle_linux_arm64.tar.zst
var packed string // a string, not []byte: those are writable data, whose pages are never given back

//go:embed bundle_linux_arm64.json
var packedInfo []byte
