//go:build bundle && linux

package bundle

import _ "embed"

//go:embed bundle_linux_arm.tar.zst
var packed string // a string: the pages of a []byte are writable and are never given back

//go:embed bundle_linux_arm.json
var packedInfo []byte
