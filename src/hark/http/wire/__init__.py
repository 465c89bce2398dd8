"""HTTP/1.1 on asyncio: connections, WebSockets, and the server that accepts them.

The parser is httptools; everything that a client can send is bounded as it arrives.
"""
