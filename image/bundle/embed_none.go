//go:build !bundle

package bundle

var (
	packed     string
	packedInfo []byte
)
