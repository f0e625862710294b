package flash

import "fmt"

// Bytes formats a size as printed on cards: thousands, not powers of two.
func Bytes(n int64) string {
	switch {
	case n >= 10e9:
		return fmt.Sprintf("%.0f GB", float64(n)/1e9)
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.0f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%d bytes", n)
}
