//go:build bundle && linux

package bundle

import _ "embed"

//go:embed bundle_linux_arm64.tar.zst
var packed string // a string: the pages of a []byte are writable and are never given back

//go:embed bundle_linux_arm64.json
var packedInfo []byte
