//go:build bundle && linux

package bundle

import _ "embed"

//go:embed bundle_linux_arm.tar.zst
var packed []byte

//go:embed bundle_linux_arm.json
var packedInfo []byte
