from tools.docs.pages import CHECKOUT, write_all

write_all(CHECKOUT)
