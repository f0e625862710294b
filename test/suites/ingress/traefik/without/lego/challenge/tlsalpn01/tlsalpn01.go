// Package tlsalpn01 stands for the one of the ACME library: nobody speaks that here.
package tlsalpn01

// ACMETLS1Protocol is the name by which RFC 8737 asks for a challenge.
const ACMETLS1Protocol = "acme-tls/1"
